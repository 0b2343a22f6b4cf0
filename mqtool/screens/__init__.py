"""What commands show: results as tables and lines of words."""
