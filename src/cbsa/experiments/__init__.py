"""One file per table or figure of the paper; each knows the paper's numbers and shows them beside ours."""
