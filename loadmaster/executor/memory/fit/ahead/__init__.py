"""What a fit has compiled in processes of their own."""
