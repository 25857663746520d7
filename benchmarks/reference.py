"""Distillation as a reader of the paper would write it (TinyBERT, Jiao et al. 2020), to be measured against.

Plain PyTorch in fp32: the teacher is asked at every step, and both models hand out the hidden states and the attention
scores of every layer, the logits too: of the vocabulary at every position if a vocabulary loss is on, of the classes
always. It imports nothing of tinybert, so that a test can compare the two.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_LENGTH_TOKENS = 512
SEGMENTS = 2
LAYER_NORM_EPS = 1e-12
INITIAL_SPREAD = 0.02
LEARNING_RATE = 5e-5
WEIGHT_DECAY = 0.01
MAX_GRADIENT_NORM = 1.0
IGNORED = -100  # the label of a token that is not predicted


class Shape(NamedTuple):
    """Size of a BERT."""

    layers: int
    width: int
    feed_forward: int
    heads: int

    def __str__(self) -> str:
        return f"{self.layers} x {self.width}"


BERT_BASE, TINYBERT4, VOCABULARY_SIZE = Shape(12, 768, 3072, 12), Shape(4, 312, 1200, 12), 30522


class Outputs(NamedTuple):
    """states: embeddings, then each layer (batch, length, width); scores: each layer (batch, heads, query, key)."""

    states: list[Tensor]
    scores: list[Tensor]


class Embeddings(nn.Module):
    """Word, position and segment embeddings."""

    def __init__(self, width: int, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(MAX_LENGTH_TOKENS, width)
        self.segment = nn.Embedding(SEGMENTS, width)
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.dropout(self.norm(self.word(ids) + self.position(positions) + self.segment(segments)))


class Attention(nn.Module):
    """Multi-head attention, then projection, residual sum and layer norm."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query = nn.Linear(shape.width, shape.width)
        self.key = nn.Linear(shape.width, shape.width)
        self.value = nn.Linear(shape.width, shape.width)
        self.output = nn.Linear(shape.width, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=LAYER_NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """mask: (batch, 1, 1, key), 0 on real tokens and very negative on padding -> states, scores before mask."""
        query, key, value = (self._split(part(hidden)) for part in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        weights = self.dropout(F.softmax(scores + mask, dim=-1))
        context = (weights @ value).transpose(1, 2).flatten(2)
        return self.norm(hidden + self.dropout(self.output(context))), scores

    def _split(self, hidden: Tensor) -> Tensor:
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, length, head width)


class FeedForward(nn.Module):
    """Two projections with a GELU between, then residual sum and layer norm."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(shape.width, shape.feed_forward)
        self.output = nn.Linear(shape.feed_forward, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=LAYER_NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden + self.dropout(self.output(F.gelu(self.inner(hidden)))))


class VocabularyHead(nn.Module):
    """Masked-LM head; its output matrix is the word embedding."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, hidden: Tensor, word_embeddings: Tensor) -> Tensor:
        return F.linear(self.norm(F.gelu(self.transform(hidden))), word_embeddings, self.bias)


class ClassificationHead(nn.Module):
    """Pooler of the first token, and the class logits."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.classifier(self.dropout(torch.tanh(self.pooler(hidden[:, 0]))))


class Bert(nn.Module):
    """BERT with a head on top, whose weights are drawn with the others."""

    def __init__(self, shape: Shape, vocabulary: int, head: nn.Module, *, dropout: float) -> None:
        super().__init__()
        self.embeddings = Embeddings(shape.width, vocabulary, dropout)
        self.attentions = nn.ModuleList(Attention(shape, dropout) for _ in range(shape.layers))
        self.feed_forwards = nn.ModuleList(FeedForward(shape, dropout) for _ in range(shape.layers))
        self.head = head
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_SPREAD)

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Outputs:
        """ids and segments (batch, length) int64, mask (batch, length) bool, True on real tokens."""
        additive = torch.zeros(mask.shape, device=ids.device).masked_fill(~mask, -10000.0)[:, None, None, :]
        states, all_scores = [self.embeddings(ids, segments)], []
        for attention, feed_forward in zip(self.attentions, self.feed_forwards, strict=True):
            attended, scores = attention(states[-1], additive)
            states.append(feed_forward(attended))
            all_scores.append(scores)
        return Outputs(states, all_scores)


class MaskedLM(Bert):
    """BERT with a masked-LM head."""

    def __init__(self, shape: Shape, vocabulary: int, *, dropout: float) -> None:
        super().__init__(shape, vocabulary, VocabularyHead(shape.width, vocabulary), dropout=dropout)

    def logits(self, outputs: Outputs) -> Tensor:
        """Vocabulary logits of every position: (batch, length, vocabulary)."""
        return self.head(outputs.states[-1], self.embeddings.word.weight)


class Classifier(Bert):
    """BERT with a classification head."""

    def __init__(self, shape: Shape, vocabulary: int, classes: int, *, dropout: float) -> None:
        super().__init__(shape, vocabulary, ClassificationHead(shape.width, classes, dropout), dropout=dropout)

    def logits(self, outputs: Outputs) -> Tensor:
        """Class logits: (batch, classes)."""
        return self.head(outputs.states[-1])


class Distillation(nn.Module):
    """Teacher, student, the learned W_e and W_h, and the optimizer of the latter three."""

    def __init__(self, teacher: Bert, student: Bert) -> None:
        super().__init__()
        self.teacher, self.student = teacher.eval(), student
        widths = [model.embeddings.word.embedding_dim for model in (student, teacher)]
        self.embedding_projection = nn.Linear(*widths, bias=False)
        self.hidden_projection = nn.Linear(*widths, bias=False)
        trained = (student, self.embedding_projection, self.hidden_projection)
        self.trained = [parameter for module in trained for parameter in module.parameters()]
        self.optimizer = torch.optim.AdamW(self.trained, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def mapped(self, teacher: Outputs) -> Outputs:
        """What the student's layers imitate, by the map g(m) = m·N/M."""
        step = len(teacher.scores) // len(self.student.attentions)
        return Outputs(teacher.states[::step], teacher.scores[step - 1 :: step])

    def layer_losses(self, student: Outputs, teacher: Outputs) -> dict[str, Tensor]:
        """Eq. 7 to 9, means over all that is there; teacher: the mapped layers alone."""
        hidden = zip(student.states[1:], teacher.states[1:], strict=True)
        scores = zip(student.scores, teacher.scores, strict=True)
        return {
            "embedding": F.mse_loss(self.embedding_projection(student.states[0]), teacher.states[0]),
            "hidden": sum(F.mse_loss(self.hidden_projection(ours), theirs) for ours, theirs in hidden),
            "attention": sum(F.mse_loss(ours, theirs) for ours, theirs in scores),
        }

    def step(self, *batch: Tensor) -> None:
        """One optimizer step on the sum of the losses of a batch, which is given as `losses` takes it."""
        self.student.train()
        sum(self.losses(*batch).values()).backward()
        nn.utils.clip_grad_norm_(self.trained, MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()


class GeneralDistillation(Distillation):
    """On unpadded text, before any task."""

    def __init__(self, teacher: MaskedLM, student: MaskedLM, *, vocabulary_losses: bool, temperature: float) -> None:
        super().__init__(teacher, student)
        self.vocabulary_losses, self.temperature = vocabulary_losses, temperature

    def losses(self, ids: Tensor, mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The terms of an unpadded batch; labels (batch, length) int64, IGNORED where nothing is predicted."""
        segments = torch.zeros_like(ids)
        with torch.no_grad():
            teacher = self.teacher(ids, mask, segments)
            teacher_logits = self.teacher.logits(teacher) if self.vocabulary_losses else None
        student = self.student(ids, mask, segments)
        terms = self.layer_losses(student, self.mapped(teacher))
        if self.vocabulary_losses:
            terms |= self._vocabulary_losses(self.student.logits(student), teacher_logits, labels)
        return terms

    def _vocabulary_losses(self, student: Tensor, teacher: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Masked LM, and T²·KL to the teacher's distribution at the masked tokens."""
        masked = labels != IGNORED
        log_student = F.log_softmax(student[masked] / self.temperature, dim=-1)
        targets = F.softmax(teacher[masked] / self.temperature, dim=-1)
        return {
            "hard": F.cross_entropy(student.flatten(0, 1), labels.flatten(), ignore_index=IGNORED),
            "prediction": F.kl_div(log_student, targets, reduction="batchmean") * self.temperature**2,
        }


class TaskDistillation(Distillation):
    """On the examples of a task, all padded to one length; `layers`: the intermediate phase, else the prediction."""

    def __init__(self, teacher: Classifier, student: Classifier, *, layers: bool) -> None:
        super().__init__(teacher, student)
        self.layers = layers

    def losses(self, ids: Tensor, mask: Tensor, segments: Tensor) -> dict[str, Tensor]:
        """The terms of a batch: of the layers, padding included, or the soft cross-entropy of eq. 10 with t = 1."""
        with torch.no_grad():
            teacher = self.teacher(ids, mask, segments)
            teacher_logits = self.teacher.logits(teacher)
        student = self.student(ids, mask, segments)
        student_logits = self.student.logits(student)
        if self.layers:
            teacher = self.mapped(teacher)
            return self.layer_losses(*(without_padded_keys(outputs, mask) for outputs in (student, teacher)))
        return {"prediction": F.cross_entropy(student_logits, teacher_logits.softmax(dim=-1))}


def without_padded_keys(outputs: Outputs, mask: Tensor) -> Outputs:
    """The same with scores of 0 where the key is padding."""
    padded = ~mask[:, None, None, :]
    return Outputs(outputs.states, [scores.masked_fill(padded, 0.0) for scores in outputs.scores])
