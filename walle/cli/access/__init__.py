"""Commands of access: who may do what in a cloud."""
