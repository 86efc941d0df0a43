"""Benchmarks behind ``cbsa bench``: what is timed, how, and what a number must pass before it is printed."""
