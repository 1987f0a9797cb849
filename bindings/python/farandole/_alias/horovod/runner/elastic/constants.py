"""`horovod.runner.elastic.constants`: words that scripts and tests look for."""

from farandole.elastic.loop import RESET_LIMIT_EXCEEDED_MESSAGE

__all__ = ["RESET_LIMIT_EXCEEDED_MESSAGE"]
