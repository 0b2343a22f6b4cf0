"""What the start of a broker would do to a store, and what it would cost. Nothing is touched."""

from __future__ import annotations

from recover.predict.outlook import Cut, limited_search_cuts, releases_that_cut
from recover.predict.prediction import Prediction
from recover.predict.start import predict

__all__ = ["Cut", "Prediction", "limited_search_cuts", "predict", "releases_that_cut"]
