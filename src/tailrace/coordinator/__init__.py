"""One job: its lifecycle, its roster of workers, its progress. A deterministic machine: events in, actions out."""
