"""What the Hugging Face and TRL examples train: a Llama of random weights, a tokenizer and a text, made on the spot."""

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SENTENCES = ["the cat sees the dog .", "a dog likes the big cat .", "the big dog sees a small cat .", "no cat hates the red dog .",
             "the small cat likes a red dog .", "a big cat sees no dog ."]
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})


def tokenizer():
    vocabulary = {word: index for index, word in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def model(words):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2))


def batch(words, rank=0, size=1):
    """input_ids, attention_mask and labels of this rank's sentences."""
    ids = words(SENTENCES[rank::size], padding=True, return_tensors="pt")
    labels = ids["input_ids"].masked_fill(ids["attention_mask"] == 0, -100)
    return {"input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"], "labels": labels}
