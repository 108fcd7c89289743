"""Golden programs: small dataflows, each with one right result, however the job is run."""
