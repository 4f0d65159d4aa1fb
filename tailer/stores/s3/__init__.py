"""S3, and stores with its protocol: the log with aiobotocore, ranges of data files with botocore on worker threads."""

__all__: list[str] = []
