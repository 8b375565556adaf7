"""The page of a `vgpu feedback` that cannot read a checkpoint."""

from vgpucli.feedback.metrics import FeedbackState, FeedbackView

JOB = "vgpu-feedback"


def unready(t: float) -> FeedbackView:
    """Its rounds end, and none has all that it needs."""
    return FeedbackView(
        rounds=int(t) + 1, last_round=1_790_000_000.0, containers={FeedbackState.UNCONFIRMED: 2}
    )
