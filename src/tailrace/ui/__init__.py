"""The page of a job.

`static/` is the page itself: HTML, CSS and JavaScript modules without a build step, and in `static/vendor/` files of others,
unchanged, with a lock. It shows snapshots of jobs, and loads nothing from outside. `export` makes one file of a snapshot and
the page.
"""
