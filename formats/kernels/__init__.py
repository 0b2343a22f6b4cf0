"""What is compiled: kernels over arrays, and the parts that they call. A kernel may only say yes; the codecs judge."""
