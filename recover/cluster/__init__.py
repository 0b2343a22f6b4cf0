"""Code that only large stores on Spark need. Nothing else imports this package."""
