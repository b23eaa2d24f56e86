"""What a trained model is worth: calibration, and figures of it."""

from stackelberg.errors import needs

with needs("numpy", extra="nlu"):
    from stackelberg.analysis.errors import AnalysisError
    from stackelberg.analysis.reliability_diagram import reliability_figure, save_figure
    from stackelberg.analysis.temperature import Temperature, fit_temperature, halves
    from stackelberg.nlu.calibration import (
        Bin,
        Calibration,
        Reliability,
        brier,
        expected_calibration_error,
        measure_calibration,
        nll,
        probabilities_of,
        reliability,
    )

__all__ = [
    "AnalysisError",
    "Bin",
    "Calibration",
    "Reliability",
    "Temperature",
    "brier",
    "expected_calibration_error",
    "fit_temperature",
    "halves",
    "measure_calibration",
    "nll",
    "probabilities_of",
    "reliability",
    "reliability_figure",
    "save_figure",
]
