"""The up-down captioner: the same decoder without latents."""

from coscap.models.base import CaptionModel, InferredLatents, TeacherForcedBatch


class UpDown(CaptionModel):
    """p(x_t | x_{<t}, I)"""

    title = "up-down"
    draws = False
    embeds_words = False
    learns_from_reward = True

    def infer(self, forced: TeacherForcedBatch, objects: str) -> InferredLatents:
        return InferredLatents()
