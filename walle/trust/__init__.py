"""Trust: which keys may sign what (TUF), signing, sealing, the audience of a directive, TLS of the tunnel."""
