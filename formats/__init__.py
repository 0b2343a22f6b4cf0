"""What the bytes of a RocketMQ store mean: pure codecs, bytes in and values out."""
