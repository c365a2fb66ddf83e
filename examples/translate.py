"""Translate with the bundled translator, and print the source token that each head attends to most."""

from clearhead.translation import Translator

translator = Translator.load()  # bundled with the package; or pass the folder of a training run
text = "I read a book in the library yesterday."
print(translator.translate(text))
print(translator.translate(["She is playing the piano.", "Where is the station?"]))

recording = translator.record(text)
cross = recording["cross"]
for layer, weights in enumerate(cross.layers):
    keys = weights.topk(1).keys[0, ..., 0]  # [heads, target tokens]
    for head in range(keys.shape[0]):
        top_tokens = " ".join(cross.keys.texts[key] for key in keys[head].tolist())
        print(f"cross {layer}.{head}: {top_tokens}")
