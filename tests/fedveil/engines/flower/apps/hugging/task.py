"""A tiny BERT with an adapter, made from a configuration, and its loops."""

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

WORDS, LENGTH, SAMPLES = 20, 12, 480


def get_model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
        attn_implementation="eager",
    )
    net = BertForSequenceClassification(config)
    adapter = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, lora_alpha=8, target_modules=["query", "value"])
    return get_peft_model(net, adapter)


def texts(count, seed):
    """Sentences with one of two words in them, padded to a length that everybody knows."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, WORDS, (count, LENGTH), generator=draw)
    labels = torch.randint(0, 2, (count,), generator=draw)
    lengths = torch.randint(4, LENGTH, (count,), generator=draw)
    ids[torch.arange(LENGTH) >= lengths[:, None]] = 0
    ids[torch.arange(count), torch.randint(0, 4, (count,), generator=draw)] = 1 + labels
    return ids, labels


def load_data(partition_id, num_partitions):
    ids, labels = texts(SAMPLES, 1)
    rows = range(partition_id, SAMPLES, num_partitions)
    samples = [{"input_ids": ids[i], "attention_mask": (ids[i] != 0).long(), "labels": labels[i]} for i in rows]
    return DataLoader(samples, batch_size=16, shuffle=True)


def train(net, trainloader, epochs, device):
    optimizer = AdamW(net.parameters(), lr=0.02)
    net.train()
    for _ in range(epochs):
        for batch in trainloader:
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = net(**batch)
            loss = outputs.loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def accuracy(net):
    ids, labels = texts(200, 2)
    net.eval()
    with torch.no_grad():
        found = net(input_ids=ids, attention_mask=(ids != 0).long()).logits.argmax(1)
    return float((found == labels).float().mean())
