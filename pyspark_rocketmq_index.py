"""Found by Spark, which registers the data source rocketmq-index by itself."""

from recover.cluster.sources import IndexSource as DefaultSource

__all__ = ["DefaultSource"]
