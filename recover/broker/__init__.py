"""What brokers do, release by release: settings, the judgement of a record, where recovery starts and ends."""
