"""An entry point of hydra, which reads the arguments and changes the directory."""

import hydra
import kept


@hydra.main(version_base=None, config_path=None)
def main(settings):
    kept.leave(*kept.train(rate=settings.lr))


if __name__ == "__main__":
    main()
