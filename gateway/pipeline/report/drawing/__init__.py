"""Plots as SVG, by functions of our own: there is nothing to fetch and nothing to run."""
