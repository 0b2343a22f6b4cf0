"""Found by Spark, which registers the data source rocketmq-consumequeue by itself."""

from recover.cluster.sources import ConsumeQueueSource as DefaultSource

__all__ = ["DefaultSource"]
