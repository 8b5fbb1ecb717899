"""Receipt of uploads in the cloud: stores of uploads, the pump that fills them, consumer groups and retention."""
