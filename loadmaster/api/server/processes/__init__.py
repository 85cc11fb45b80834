"""Work that would hold up the server, in processes of its own: a few at a time, with a cap on their memory."""
