"""Training, evaluating and using segmenters, by the loop that trains classifiers too."""
