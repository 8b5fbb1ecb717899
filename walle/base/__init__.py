"""Clock, backoff, durable files, plain data, names, version ranges, codings of files, types of ASGI."""
