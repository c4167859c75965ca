"""What a row of a forward attends to, and the backends that compute it."""
