"""Sources of files: places (folders of this machine and URLs), partition columns, records of CSV and JSON, new files."""
