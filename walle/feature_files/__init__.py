"""Files of features: the spool of an export that continues where it ended, and its forms (JSON lines, CSV, Parquet)."""

from walle.feature_files.csv_cells import cell_of_text, text_of_cell
from walle.feature_files.export import Export, ExportError, FileForm, form_of

__all__ = ["Export", "ExportError", "FileForm", "cell_of_text", "form_of", "text_of_cell"]
