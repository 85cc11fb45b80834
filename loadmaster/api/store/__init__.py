"""The store of jobs: tables, submissions and reads, and the queue of leases. SQLAlchemy core."""
