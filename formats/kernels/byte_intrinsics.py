"""What only LLVM can say: loads and stores at any byte, pointers without counts. Needs numba; kernels name it by
`compiled.intrinsic`.

`data` is a uint8 array or, where every nanosecond counts, what `pointer_to` makes of one: numba counts references to
arrays at every call and return, which takes longer than the work on a short record.
"""

from __future__ import annotations

import sys
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _load(bits: int, *, swap: bool = True) -> Any:
    """An intrinsic that reads an unsigned number of so many bits at `data[i]`, aligned or not; turned with `swap`.

    Composed of single bytes it would take many times as long: for all numba knows, each index could be negative.
    """
    result = types.Integer.from_bitwidth(bits, signed=False)

    @intrinsic
    def load(typingctx: Any, data: Any, i: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _place(context, builder, signature.args[0], args[0], args[1], ir.IntType(bits))
            value = builder.load(pointer, align=1)
            return builder.bswap(value) if swap else value

        return result(data, types.int64), codegen

    return load


def _place(context: Any, builder: Any, kind: Any, data: Any, i: Any, content: Any) -> Any:
    """A pointer to `content` at byte `i` of an array or of the bytes of one."""
    if isinstance(kind, types.Array):
        data = context.make_array(kind)(context, builder, data).data
    data = builder.bitcast(data, ir.IntType(8).as_pointer())
    return builder.bitcast(builder.gep(data, [i]), content.as_pointer())


@intrinsic
def pointer_to(typingctx: Any, array: Any) -> Any:
    """The elements of an array, without counts of references, without checks: of numbers as they are, else the bytes.

    One index, from 0, also where the array has two dimensions. The array has to outlive it.
    """
    element = array.dtype if isinstance(array.dtype, types.Integer) else types.uint8

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.bitcast(data, context.get_data_type(element).as_pointer())

    pointer: Any = types.CPointer
    return pointer(element)(array), codegen


def _store(bits: int, order: str = "little") -> Any:
    """An intrinsic that writes the low bits of a number at byte `i`, by default as arrays of RECORD have it."""
    @intrinsic
    def store(typingctx: Any, data: Any, i: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            number = ir.IntType(bits)
            pointer = _place(context, builder, signature.args[0], args[0], args[1], number)
            value = args[2] if bits == 64 else builder.trunc(args[2], number)
            builder.store(value if sys.byteorder == order else builder.bswap(value), pointer, align=1)

        return types.void(data, types.int64, types.int64), codegen

    return store


put_u16 = _store(16)
put_i32 = _store(32)
put_i64 = _store(64)
put_file_i32 = _store(32, "big")
put_file_i64 = _store(64, "big")


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


@intrinsic
def swapped_i32(typingctx: Any, value: Any) -> Any:
    """An int32 with its bytes in the order of a file, or back."""
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0]) if sys.byteorder == "little" else args[0]

    return types.int32(types.int32), codegen


@intrinsic
def prefetch_to_write(typingctx: Any, array: Any, i: Any) -> Any:
    """Tell the processor that element `i` of an array will be read and written soon. It faults nowhere."""
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, octet = ir.IntType(32), ir.IntType(8).as_pointer()
        place = builder.gep(context.make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])
        kind = ir.FunctionType(ir.VoidType(), [octet, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [octet], kind)
        # to write, into all caches, data
        builder.call(function, [builder.bitcast(place, octet), number(1), number(3), number(1)])

    return types.void(array, types.int64), codegen


def _mask(test: str) -> Any:
    """An intrinsic for 64 bytes from `data[i]` on: bit k is set where byte k compares so with `value`."""
    @intrinsic
    def mask(typingctx: Any, data: Any, i: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            octets = ir.VectorType(ir.IntType(8), 64)
            block = builder.load(_place(context, builder, signature.args[0], args[0], args[1], octets), align=1)
            value, nothing = builder.trunc(args[2], ir.IntType(8)), octets(ir.Undefined)
            first = builder.insert_element(nothing, value, ir.IntType(32)(0))
            every = builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64))
            found = builder.bitcast(builder.icmp_unsigned(test, block, every), ir.IntType(64))
            return found if sys.byteorder == "little" else builder.bitreverse(found)

        return types.uint64(data, types.int64, types.int64), codegen

    return mask


mask_below = _mask("<")
mask_equal = _mask("==")


@intrinsic
def weighted_sum(typingctx: Any, data: Any, i: Any, weights: Any, j: Any) -> Any:
    """The 32 bytes from `data[i]` on, each times a uint32 from `weights[j]` on, and all that added; a uint32."""
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        octets, words = ir.VectorType(ir.IntType(8), 32), ir.VectorType(ir.IntType(32), 32)
        block = builder.load(_place(context, builder, signature.args[0], args[0], args[1], octets), align=1)
        at = builder.mul(args[3], ir.Constant(ir.IntType(64), 4))
        factors = builder.load(_place(context, builder, signature.args[2], args[2], at, words), align=4)
        kind = ir.FunctionType(ir.IntType(32), [words])
        name = "llvm.vector.reduce.add.v32i32"
        add = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        return builder.call(add, [builder.mul(builder.zext(block, words), factors)])

    return types.uint32(data, types.int64, weights, types.int64), codegen


@intrinsic
def call_crc(typingctx: Any, address: Any, data: Any, start: Any, length: Any) -> Any:
    """`crc32_gzip_refl(0, &data[start], length)` through an address known at run time; `data` is a pointer."""
    signature = types.uint32(types.uint64, data, types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, data, start, length = args
        pointer = builder.gep(data, [start])
        function_type = ir.FunctionType(
            ir.IntType(32), [ir.IntType(32), ir.IntType(8).as_pointer(), ir.IntType(64)]
        )
        function = builder.inttoptr(address, function_type.as_pointer())
        return builder.call(function, [ir.Constant(ir.IntType(32), 0), pointer, length])

    return signature, codegen


@intrinsic
def call_preadv2(typingctx: Any, address: Any, descriptor: Any, vector: Any, offset: Any, flags: Any) -> Any:
    """`preadv2(descriptor, vector, 1, offset, flags)` through an address known at run time; all are numbers."""
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, long = ir.IntType(32), ir.IntType(64)
        kind = ir.FunctionType(long, [number, long, number, long, number])
        address, descriptor, vector, offset, flags = args
        descriptor, flags = builder.trunc(descriptor, number), builder.trunc(flags, number)
        function = builder.inttoptr(address, kind.as_pointer())
        return builder.call(function, [descriptor, vector, number(1), offset, flags])

    return types.int64(*[types.int64] * 5), codegen


@intrinsic
def address_of(typingctx: Any, data: Any, i: Any) -> Any:
    """The address of byte `i` behind a pointer."""
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1], ir.IntType(8))
        return builder.ptrtoint(place, ir.IntType(64))

    return types.int64(data, types.int64), codegen


byte = _load(8, swap=False)
u16 = _load(16)
u32 = _load(32)
u64 = _load(64)
word = _load(64, swap=sys.byteorder == "big")
