"""What a person asks for, validated and rendered as a TorchX AppDef."""
