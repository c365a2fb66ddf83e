"""The bundled translator: a translation, and which source word each of its tokens was written from."""

from clearhead.translation import Translator

translator = Translator.load()  # comes with the package; or the folder of a run of your own
text = "I read a book in the library yesterday."
print(translator.translate(text))
print(translator.translate(["She is playing the piano.", "Where is the station?"]))

recording = translator.record(text)
cross = recording["cross"]
for layer, weights in enumerate(cross.layers):
    keys = weights.topk(1).keys[0, ..., 0]  # [heads, written]
    for head in range(keys.shape[0]):
        seen = " ".join(cross.keys.texts[key] for key in keys[head].tolist())
        print(f"cross {layer}.{head}: {seen}")
