"""The page of a job.

`static/` is the page itself: HTML, CSS and JavaScript modules without a build step, and in `static/vendor/` files of others,
unchanged, with a lock. It shows snapshots of jobs, and loads nothing from outside.

- `app`: the application: snapshots as JSON and as events, orders to jobs, the files of the page.
- `jobs`: the jobs that a page shows, of this program or of others.
- `guard`: which requests are let through.
- `server`: the server, in a thread of its own.
- `families`: the metrics of jobs; `metrics` for Prometheus, `otel` for OpenTelemetry, with spans.
- `openapi`: the description of the requests.
- `export`: one file with a snapshot and the page.

`app` and what it imports need `tailrace[ui]`; nothing else of Tailrace imports it before a page is requested.
"""
