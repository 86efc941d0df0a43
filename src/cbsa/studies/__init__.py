"""Studies: many runs of the trainer as one queue of resumable jobs, described by a manifest.

``cbsa study NAME`` works through a manifest; :mod:`cbsa.studies.manifest` says what one holds.
"""
