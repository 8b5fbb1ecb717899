"""Who may sign what (TUF): metadata, signing, sealing, audience of a directive, TLS of the tunnel."""
