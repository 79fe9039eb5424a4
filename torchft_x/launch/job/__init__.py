"""What a person asks for, validated and rendered as a TorchX app.

* `build`: what components call. `job`, `lighthouse_job`: what was asked for, validated. `app`: rendered; pure.
* `parse`: words as values. `checks`: what can be seen to be wrong before anything starts.
"""
