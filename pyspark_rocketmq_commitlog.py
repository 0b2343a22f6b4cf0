"""Found by Spark, which registers the data source rocketmq-commitlog by itself."""

from recover.cluster.sources import CommitlogSource as DefaultSource

__all__ = ["DefaultSource"]
