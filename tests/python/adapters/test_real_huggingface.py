"""The Hugging Face adapter on the installed library: tiny models with random weights."""

import copy

import pytest
import torch

from lossd.adapters import huggingface

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
if not hasattr(transformers, "Qwen3Config"):
    pytest.skip("this version of transformers is older than the adapter's models", allow_module_level=True)

MODELS = {"llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral", "gemma2": "Gemma2", "qwen2": "Qwen2", "qwen3": "Qwen3"}
LAYERS = {"norm": True, "rotary": True, "mlp": True}


def tiny(model_type, dtype=torch.float32, **more):
    torch.manual_seed(0)
    config = getattr(transformers, MODELS[model_type] + "Config")(
        vocab_size=67, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, **more)
    model = getattr(transformers, MODELS[model_type] + "ForCausalLM")(config)
    for parameter in model.parameters():  # norms' weights away from where they start
        parameter.data += 0.05 * torch.randn(parameter.shape)
    return model.to(dtype).train()


def batch():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 67, (2, 11), generator=generator)
    labels = ids.clone()
    labels[0, :4] = -100
    return ids, labels


def losses_and_gradients(model, **more):
    ids, labels = batch()
    out = model(input_ids=ids, labels=labels, **more)
    out.loss.backward()
    return out, {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_same(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name in theirs:
        error = (ours[name].double() - theirs[name].double()).norm() / theirs[name].double().norm().clamp(min=1e-6)
        assert error <= tolerance, f"{name}: {error:.2e}"


@pytest.mark.parametrize("model_type", sorted(MODELS))
def test_fused_loss_is_the_model_s_own(client, model_type):
    model = tiny(model_type)
    theirs, expected = losses_and_gradients(copy.deepcopy(model))
    with huggingface.apply_lossd(model_type, client=client):
        ours, found = losses_and_gradients(model)
    assert ours.logits is None and theirs.logits is not None
    assert abs(ours.loss.item() - theirs.loss.item()) < 2e-5
    assert_same(found, expected, 1e-4)


@pytest.mark.parametrize("model_type", sorted(MODELS))
@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_layers_are_the_model_s_own(client, model_type, layer):
    model = tiny(model_type)
    theirs, expected = losses_and_gradients(copy.deepcopy(model))
    with huggingface.apply_lossd(model_type, client=client, fused_loss=False, **{layer: True}) as switch:
        assert switch.active or (model_type, layer) == ("mixtral", "mlp")
        ours, found = losses_and_gradients(model)
    assert (ours.logits - theirs.logits).abs().max() < 1e-4
    assert_same(found, expected, 1e-4)


def test_items_in_the_batch_divide_the_sum(client):
    model = tiny("llama")
    theirs, expected = losses_and_gradients(copy.deepcopy(model), num_items_in_batch=torch.tensor(37))
    with huggingface.apply_lossd_to_llama(client=client):
        ours, found = losses_and_gradients(model, num_items_in_batch=torch.tensor(37))
    assert abs(ours.loss.item() - theirs.loss.item()) < 1e-5
    assert_same(found, expected, 1e-4)


def test_nothing_changes_in_eval_without_labels_and_after_removal(client):
    model = tiny("llama")
    ids, labels = batch()
    native = transformers.LlamaForCausalLM.forward
    switch = huggingface.apply_lossd_to_llama(client=client)
    assert model(input_ids=ids).logits is not None
    model.eval()
    assert model(input_ids=ids, labels=labels).logits is not None
    assert torch.equal(model.generate(ids, max_new_tokens=2)[:, :11], ids)
    switch.remove()
    assert transformers.LlamaForCausalLM.forward is native
    model.train()
    assert model(input_ids=ids, labels=labels).logits is not None


def test_a_tuple_has_the_loss_first_and_no_logits(client):
    model = tiny("llama")
    ids, labels = batch()
    with huggingface.apply_lossd_to_llama(client=client):
        out = model(input_ids=ids, labels=labels, return_dict=False, use_cache=False)
        assert len(out) == 1 and out[0].ndim == 0


def test_checkpointed_layers(client):
    model = tiny("llama")
    _, expected = losses_and_gradients(copy.deepcopy(model))
    model.gradient_checkpointing_enable()
    with huggingface.apply_lossd_to_llama(client=client, **LAYERS):
        _, found = losses_and_gradients(model)
    assert_same(found, expected, 1e-4)


def test_a_run_of_training_ends_at_the_same_weights(client):
    """20 steps of Adam by lossd and by transformers."""
    def train(model):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        ids, labels = batch()
        values = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        return values, dict(model.named_parameters())

    model = tiny("llama")
    expected, weights = train(copy.deepcopy(model))
    with huggingface.apply_lossd_to_llama(client=client, **LAYERS):
        found, ours = train(model)
    assert max(abs(a - b) for a, b in zip(found, expected)) < 1e-3 and found[-1] < 0.7 * found[0]
    assert_same(ours, weights, 5e-3)
