"""Files of features: the spool of an export that goes on where it ended, and its forms (JSON lines, CSV, Parquet)."""

from walle.feature_files.export import Export, ExportError, FileForm, form_of

__all__ = ["Export", "ExportError", "FileForm", "form_of"]
