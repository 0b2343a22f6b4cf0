"""Found by Spark, which registers the data source rocketmq-findings by itself."""

from recover.cluster.sources import FindingsSource as DefaultSource

__all__ = ["DefaultSource"]
