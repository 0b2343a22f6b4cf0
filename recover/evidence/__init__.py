"""What records, units and rows say of one another: what queues should hold, and what is lost or denied."""
