"""Codecs for the files of a RocketMQ store: pure functions, bytes in and values out."""
