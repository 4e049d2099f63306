"""Everything that a report shows of one incident. Renderers decide nothing beyond it."""
