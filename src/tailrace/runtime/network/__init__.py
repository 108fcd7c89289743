"""Connections between the processes of a job.

In: an address and a token. Out: links over which both ends exchange messages, each of which knows that the other one has
the token.

- `link`, `securelink`, `tls`: an authenticated connection that carries messages, with TLS where it is set.
- `listener`, `dialing`, `binding`: how connections begin, and at which address and ports.
- `coordinator_links`: the coordinator's connections to workers. `peers`, `links`: a worker's connections to other workers.
- `config`: the knowledge of a worker before its first message.
"""
