"""Where the service keeps its jobs: tables, submissions and reads, and the queue of leases. SQLAlchemy core."""
