"""Shared files (§6): content-addressed stores, /cdn, codings, retention."""
