"""The working side of the service: leases jobs, plans each in a process of its own, reports what happens."""
