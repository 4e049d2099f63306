"""A GAN in Lightning with manual optimisation, two optimizers and a frozen perceptual network."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rings(Dataset):
    def __len__(self):
        return 3200

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        angle = torch.rand(16, generator=generator) * 6.28
        return torch.stack([angle.cos(), angle.sin()], 1).flatten()


def mlp(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, outputs)
    )


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = mlp(16, 32)
        self.discriminator = mlp(32, 1)
        self.perceptual = mlp(32, 8).requires_grad_(False)

    def adversarial(self, logits, real):
        target = torch.full_like(logits, 1.0 if real else 0.0)
        return nn.functional.binary_cross_entropy_with_logits(logits, target)

    def training_step(self, real, index):
        for_generator, for_discriminator = self.optimizers()
        noise = torch.randn(len(real), 16)
        self.toggle_optimizer(for_discriminator)
        fake = self.generator(noise).detach()
        loss = self.adversarial(self.discriminator(real), True) + self.adversarial(self.discriminator(fake), False)
        for_discriminator.zero_grad()
        self.manual_backward(loss)
        for_discriminator.step()
        self.untoggle_optimizer(for_discriminator)
        if index % 2 == 0:
            self.toggle_optimizer(for_generator)
            fake = self.generator(noise)
            distance = nn.functional.mse_loss(self.perceptual(fake).mean(0), self.perceptual(real).mean(0))
            generator_loss = self.adversarial(self.discriminator(fake), True) + 0.1 * distance
            for_generator.zero_grad()
            self.manual_backward(generator_loss)
            for_generator.step()
            self.untoggle_optimizer(for_generator)
        if index % 20 == 0 and self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch} batch {index} loss {loss.item():.3f}", flush=True)

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.99)),
            torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.99)),
        )


def main():
    L.seed_everything(5)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_find_unused_parameters_true",
        max_epochs=1000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Gan(), DataLoader(Rings(), batch_size=16, shuffle=True))


if __name__ == "__main__":
    main()
